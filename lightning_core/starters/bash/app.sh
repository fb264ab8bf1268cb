# Says which team a customer's message is for. Try it: bash app.sh "My card was charged twice"
# It needs curl and jq.
set -euo pipefail

PROMPT="Which team answers this message: billing, shipping or account?"
LONGEST=256  # tokens of a reply: one that runs on would hold up the others
SCHEMA='{"type": "object", "properties": {"team": {"type": "string", "enum": ["billing", "shipping", "account"]}},
  "required": ["team"], "additionalProperties": false}'

jq --null-input --arg model "${MODEL:-gpt-5-mini}" --arg prompt "$PROMPT" --arg message "$1" --argjson longest "$LONGEST" \
  --argjson schema "$SCHEMA" '{
  model: $model,
  max_completion_tokens: $longest,
  messages: [{role: "system", content: $prompt}, {role: "user", content: $message}],
  response_format: {type: "json_schema", json_schema: {name: "triage", schema: $schema, strict: true}}
}' | curl --silent --show-error --fail-with-body "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions" \
  --header "Authorization: Bearer ${OPENAI_API_KEY:-none}" --header "Content-Type: application/json" --data @- |
  jq --raw-output '.choices[0].message.content | fromjson | .team'
