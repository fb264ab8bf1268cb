// A worker in another language: leases rollouts of a run, runs its own little app on each, says how it went.
// The app knows only the address and the key that came with the lease; the gateway there records its calls.

declare const process: {
  env: Record<string, string | undefined>; pid: number; once(signal: string, then: () => void): void
}
type Task = { id: string; input: { question: string; answer: string } }
type Lease = { key: string; attempt: { rollout: { id: string; task: Task } }; environment: Environment | null }
type Environment = { OPENAI_BASE_URL: string; OPENAI_API_KEY: string; LIGHTNING_REWARD_URL: string }

const api = process.env.LIGHTNING_API_URL ?? "http://127.0.0.1:8100/api/v1"
const token = process.env.LIGHTNING_API_TOKEN ?? ""
const SECONDS = 60 // how long a lease holds without a heartbeat
const stop = new AbortController()
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => stop.abort())
const sleep = (seconds: number) => new Promise<void>((wake) => setTimeout(wake, seconds * 1000))

async function post<T>(url: string, key: string, body: unknown, signal: AbortSignal | null = null): Promise<T> {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" }
  for (;;) {
    const asked = fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal })
    const answer = await asked.catch((error: unknown) => {
      if (!(error instanceof TypeError && url.startsWith(api))) throw error // else nobody listens there now
    })
    if (answer?.ok) return (await answer.json()) as T
    if (answer && answer.status !== 503) throw new Error(`${answer.status} ${await answer.text()}`)
    await sleep(Number(answer?.headers.get("retry-after") ?? 1)) // the API or its store is away: ask again
  }
}

// The app: one question to the policy, and a reward, both to the gateway with the rollout's own key.
async function solve(task: Task, env: Environment, lost: AbortSignal): Promise<void> {
  type Reply = { choices: { message: { content: string } }[] }
  const chat = { model: "policy", messages: [{ role: "user", content: task.input.question }] }
  const reply = await post<Reply>(`${env.OPENAI_BASE_URL}/chat/completions`, env.OPENAI_API_KEY, chat, lost)
  const right = reply.choices[0]?.message.content.includes(task.input.answer)
  await post(env.LIGHTNING_REWARD_URL, env.OPENAI_API_KEY, { value: right ? 1 : 0, id: "answer" }, lost)
}

async function run({ key, attempt, environment }: Lease): Promise<void> {
  if (environment === null) { // no gateway answers
    await post(`${api}/leases/release`, token, { keys: [key] })
    return sleep(1)
  }
  const lost = new AbortController()
  const beat = async () => {
    const body = { keys: [key], seconds: SECONDS }
    const { held } = await post<{ held: string[] }>(`${api}/leases/heartbeat`, token, body)
    if (!held.includes(key)) lost.abort() // cancelled, or given to another worker
  }
  const beating = setInterval(() => beat().catch(console.error), (SECONDS * 1000) / 3)
  const error = await solve(attempt.rollout.task, environment, lost.signal).then(() => null, String)
  clearInterval(beating)
  if (!lost.signal.aborted) await post(`${api}/leases/finish`, token, { key, error })
  console.log(`${attempt.rollout.id}: ${lost.signal.aborted ? "lost" : error ?? "done"}`)
}

async function lease(): Promise<Lease[]> {
  const wanted = { worker: `typescript-${process.pid}`, limit: 4, seconds: SECONDS, wait: 30, agent: "answerer" }
  try {
    return (await post<{ leases: Lease[] }>(`${api}/leases`, token, wanted, stop.signal)).leases
  } catch (error) {
    if (stop.signal.aborted) return []
    throw error
  }
}

while (!stop.signal.aborted) await Promise.all((await lease()).map((one) => run(one).catch(console.error)))
