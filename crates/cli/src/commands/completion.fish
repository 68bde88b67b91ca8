# Completion of drover for fish. The words come from drover itself, which asks the agent for identifiers.
function __drover_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] complete -- $words[2..-1] "$current" 2>/dev/null)
        if test "$line" = :files
            # Of `-flag=path`, the path.
            set -l parts (string match -r '^(-[^=]*=)(.*)$' -- "$current")
            if set -q parts[1]
                string replace -r '^' -- "$parts[2]" (__fish_complete_path "$parts[3]")
            else
                __fish_complete_path "$current"
            end
        else
            # echo takes some words for its own flags.
            printf '%s\n' $line
        end
    end
end
complete -c drover -f -a '(__drover_complete)'
