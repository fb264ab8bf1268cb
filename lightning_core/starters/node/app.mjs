// Says which team a customer's message is for. Try it: node app.mjs "My card was charged twice"

import { fileURLToPath } from "node:url"

const PROMPT = "Which team answers this message: billing, shipping or account?"
const LONGEST = 256 // tokens of a reply: one that runs on would hold up the others
const SCHEMA = {
  type: "object",
  properties: { team: { type: "string", enum: ["billing", "shipping", "account"] } },
  required: ["team"],
  additionalProperties: false,
}

export async function answer(message) {
  const reply = await fetch(`${process.env.OPENAI_BASE_URL ?? "https://api.openai.com/v1"}/chat/completions`, {
    method: "POST",
    headers: {
      "authorization": `Bearer ${process.env.OPENAI_API_KEY ?? "none"}`,
      "content-type": "application/json",
    },
    body: JSON.stringify({
      model: process.env.MODEL ?? "gpt-5-mini",
      messages: [{ role: "system", content: PROMPT }, { role: "user", content: message }],
      max_completion_tokens: LONGEST,
      response_format: { type: "json_schema", json_schema: { name: "triage", schema: SCHEMA, strict: true } },
    }),
  })
  if (!reply.ok) throw new Error(`${reply.status}: ${await reply.text()}`)
  return JSON.parse((await reply.json()).choices[0].message.content).team
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(await answer(process.argv[2]))
