# complete.zsh FOLDER-OF-COMPLETION LINE... - what zsh completes at the end of each line: "== LINE", then a word a line.
# An interactive zsh on a terminal of its own gets the line and a tab; its compadd says what it is given.
zmodload zsh/zpty
folder=$1
shift
zpty shell zsh -f -i
zpty -w shell "source ${(q)0:A:h}/complete-inside.zsh ${(q)folder}"
zpty -r shell text $'*@ready@*'
for line; do
    zpty -w -n shell $line$'\t'
    text=
    zpty -r shell text $'*@done@*'
    print -r -- "== $line"
    while [[ $text == *@word@*@end@* ]]; do
        text=${text#*@word@}
        print -r -- ${text%%@end@*}
        text=${text#*@end@}
    done
done
zpty -d shell
