# Completion of drover for bash. The words come from drover itself, which asks the agent for identifiers.
_drover() {
    local line quoted back='\'
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            # Old releases of bash, and callers outside of a completion, have no compopt.
            compopt -o default 2>/dev/null || while IFS= read -r line; do
                COMPREPLY+=("$line")
            done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]#=}")
        else
            # As it must stand where it goes: behind a quote that is open, another way than by itself.
            case ${COMP_WORDS[COMP_CWORD]} in
            \'*) quoted=${line//\'/"'$back''"} ;;
            \"*)
                # The shell's history is looked into within these quotes, and nothing keeps it from that.
                [[ $line == *!* ]] && continue
                quoted=${line//"$back"/"$back$back"}
                quoted=${quoted//\"/"$back"\"}
                quoted=${quoted//\$/"$back"$}
                quoted=${quoted//\`/"$back"\`}
                ;;
            *) printf -v quoted '%q' "$line" ;;
            esac
            COMPREPLY+=("$quoted")
        fi
    done < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _drover drover
