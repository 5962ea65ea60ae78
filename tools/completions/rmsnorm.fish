# SPDX-License-Identifier: Apache-2.0
# Completion for fish. `rmsnorm complete` makes the words from the command's own options.
function __rmsnorm_complete
    set -l words (commandline -opc)
    set -l begun (commandline -ct)
    for line in ($words[1] complete $words[2..] $begun 2>/dev/null)
        if test $line = :files
            set -l option (string match -r -- '^--[^=]*=' $begun)
            for path in (__fish_complete_path (string replace -- "$option" '' $begun))
                echo "$option$path"
            end
        else
            echo $line
        end
    end
end
complete -c rmsnorm -f -a '(__rmsnorm_complete)'
