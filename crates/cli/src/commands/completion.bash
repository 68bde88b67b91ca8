# Completion of drover for bash. The words come from drover itself, which asks the agent for identifiers.
_drover() {
    local line quoted
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            # Old releases of bash, and callers outside of a completion, have no compopt.
            compopt -o default 2>/dev/null || while IFS= read -r line; do
                COMPREPLY+=("$line")
            done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]#=}")
        else
            printf -v quoted '%q' "$line"
            COMPREPLY+=("$quoted")
        fi
    done < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _drover drover
