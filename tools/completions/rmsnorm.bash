# SPDX-License-Identifier: Apache-2.0
# Completion for bash. `rmsnorm complete` makes the words from the command's own options.
_rmsnorm() {
  local command=${1/#~\//$HOME/} part=$2 line=${COMP_LINE:0:COMP_POINT} words word begun
  # bash splits words at "=" and ":" too, and replaces no more than the last part.
  IFS=$' \t\n' read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  begun=${words[${#words[@]} - 1]}
  COMPREPLY=()
  if [[ $begun != *"$part" ]]; then  # in quotes, so a name of a file
    compopt -o default
    return
  fi
  while IFS=$'\t' read -r word _; do
    if [[ $word != :files ]]; then
      COMPREPLY+=("${word:${#begun}-${#part}}")
    elif [[ $begun != *.safetensors:* ]]; then  # a tensor's name is no file
      compopt -o default
    fi
  done < <("$command" complete "${words[@]:1}" 2>/dev/null)
}
complete -F _rmsnorm rmsnorm
