# complete.bash COMPLETION LINE... - what bash completes at the end of each line: "== LINE", then a word a line.
source /usr/share/bash-completion/bash_completion
source "$1" || exit
shift
for line; do
    # As readline cuts it: = and : are words of their own.
    COMP_LINE=$line
    COMP_POINT=${#line}
    read -ra COMP_WORDS <<<"$(sed 's/[=:]/ & /g' <<<"$line")"
    [[ $line != *" " ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _fastchat "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '== %s\n' "$line" "${COMPREPLY[@]}" | sed '2,$ s/^== //'
done
