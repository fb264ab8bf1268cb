// Runs the app once on the task that it reads, and prints the reward: 1 for the right team, otherwise 0.

import { readFileSync } from "node:fs"

import { answer } from "./app.mjs"

const { input } = JSON.parse(readFileSync(0, "utf8"))
const team = await answer(input.message)
console.log(JSON.stringify({ reward: team === input.team ? 1 : 0 }))
