#compdef drover
# Completion of drover for zsh. The words come from drover itself, which asks the agent for identifiers.
_drover() {
    local line files
    local -a found
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            files=yes
        else
            found+=("$line")
        fi
    done < <("${(Q)words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( $#found )) && compadd -a found
    if [[ -n $files ]]; then
        [[ $PREFIX == -*=* ]] && compset -P '*='
        _files
    fi
}
# Autoloaded from $fpath, this file is the function itself; sourced, it registers the function.
if [[ ${funcstack[1]} == _drover ]]; then
    _drover "$@"
else
    compdef _drover drover
fi
