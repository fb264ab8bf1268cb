# Runs the app once on the task that it reads, and prints the reward: 1 for the right team, otherwise 0.
set -euo pipefail
cd "$(dirname "$0")"

task=$(cat)
team=$(bash app.sh "$(jq --raw-output .input.message <<< "$task")")
if [ "$team" = "$(jq --raw-output .input.team <<< "$task")" ]; then echo 1; else echo 0; fi
