# complete-inside.zsh FOLDER-OF-COMPLETION - for complete.zsh: makes an interactive zsh say what it would complete.
fpath=($1 $fpath)
autoload -Uz compinit
compinit -u -D
unset zle_bracketed_paste
PS1= PS2= RPS1=
compadd() {
    local -a matched
    local word
    if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)\ * ]]; then
        builtin compadd -O matched "$@"
        for word in $matched; do
            print -rn -- "@word@$word@end@"
        done
    fi
    builtin compadd "$@"
}
complete-and-say() {
    zle complete-word
    BUFFER=
    print -rn -- '@done''@'
}
zle -N complete-and-say
bindkey '^I' complete-and-say
print -r -- '@ready''@'
