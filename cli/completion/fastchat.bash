# bash completion for fastchat(1)
#
# Nothing is listed here: commands, options and what they take come from the program's own help, so what completes is what
# that program knows. Names of models come from the service, which has two seconds ($FASTCHAT_COMPLETION_S) to answer.

_fastchat_ask()     # ARGUMENT... - what the program prints, if it does so soon
{
    timeout "${FASTCHAT_COMPLETION_S:-2}" "$program" "$@" 2>/dev/null </dev/null
}

# The models of the running service, or those on disk; the words say which.
_fastchat_models()
{
    local i where=()

    for ((i = 2; i < cword; i++)); do
        case ${words[i]} in
            --runtime-dir=?* | --api=?* | --dir=?*) where+=("${words[i]}") ;;
            --runtime-dir | --api | --dir) where+=("${words[i]}=${words[i + 1]/#\~/$HOME}") ;;
        esac
    done
    if [[ $command == model ]]; then
        _fastchat_ask model list "${where[@]}" | sed '1d; s/ .*//'
    else
        _fastchat_ask models "${where[@]}"
    fi
}

# Adds what may stand for a word of the help: MODEL, FILE, check|dump|diff.
_fastchat_add()     # WHAT
{
    local part parts

    IFS='|' read -ra parts <<<"${1//[].[ ]/}"
    for part in "${parts[@]}"; do
        case $part in
            MODEL | NAME) COMPREPLY+=($(compgen -W '$(_fastchat_models)' -- "$cur")) ;;
            FILE | PATH) _filedir ;;
            DIR) _filedir -d ;;
            *[A-Z]*) ;;
            *) COMPREPLY+=($(compgen -W '$part' -- "$cur")) ;;
        esac
    done
}

# The operand of that number, from the usage: "[MODEL]", "check|dump [FILE]", "list | rm NAME... | verify [NAME...]".
_fastchat_operand() # USAGE NUMBER FIRST-OPERAND
{
    local usage=$1 way ways tokens

    if [[ $usage == *" | "* ]]; then
        IFS=$'\n' read -rd '' -a ways <<<"${usage// | /$'\n'}"
        for way in "${ways[@]}"; do
            if [[ $2 == 0 ]]; then
                _fastchat_add "${way%% *}"
            elif [[ $3 == "${way%% *}" ]]; then
                _fastchat_operand "$way" "$2" ""
            fi
        done
        return
    fi
    read -ra tokens <<<"$usage"
    if (($2 < ${#tokens[@]})); then
        _fastchat_add "${tokens[$2]}"
    elif [[ $usage == *...* ]]; then
        _fastchat_add "${tokens[-1]}"
    fi
}

_fastchat()
{
    local cur prev words cword split
    _init_completion -s -n : || return

    local program=${1/#\~/$HOME} command=${words[1]} line usage="" first="" i n=0 options=true
    local -A value=()

    if ((cword == 1)) || [[ $command == help && $cword == 2 ]]; then
        [[ $cur == -* ]] && i=Options || i=Commands
        COMPREPLY=($(compgen -W '$("$program" --help 2>/dev/null |
            sed -n "/^$i:/,/^$/ s/^  \([a-z-]\+\) .*/\1/p")' -- "$cur"))
        return
    fi
    while IFS= read -r line; do
        if [[ $line == "Usage: "* ]]; then
            usage=${line#*"[OPTION...]"}
        elif [[ $line =~ ^\ \ ((-[a-z0-9]),\ )?(--[a-z0-9-]+)(\ ([^ ]+))?\ +[^\ ] ]]; then
            value[${BASH_REMATCH[3]}]=${BASH_REMATCH[5]}
            [[ ! ${BASH_REMATCH[2]} ]] || value[${BASH_REMATCH[2]}]=${BASH_REMATCH[5]}
        fi
    done < <("$program" "$command" --help 2>/dev/null </dev/null)

    if [[ ${value[$prev]-} && $cword -gt 2 || $split == true ]]; then
        [[ ${value[$prev]-} == *"|"* || ${value[$prev]-} == @(MODEL|FILE|DIR) ]] && _fastchat_add "${value[$prev]}"
    else
        for ((i = 2; i < cword; i++)); do
            if [[ $options == true && ${words[i]} == -- ]]; then
                options=false
            elif [[ $options == true && ${words[i]} == -?* ]]; then
                [[ ! ${value[${words[i]}]-} ]] || ((i++))
            else
                ((n++)) || first=${words[i]}
            fi
        done
        if [[ $options == true && $cur == -* ]]; then
            COMPREPLY=($(compgen -W '${!value[*]}' -- "$cur"))
        else
            _fastchat_operand "${usage# }" $n "$first"
        fi
    fi
    __ltrim_colon_completions "$cur"
} &&
    complete -F _fastchat fastchat
