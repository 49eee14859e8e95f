# Completion of firectl for bash. Options come from `firectl COMMAND --help`, presets from `firectl
# presets`, so the list is never out of date.

_firectl_presets() {
    firectl presets --json 2>/dev/null | sed -n 's/^{"preset":"\([^"]*\)".*/\1/p'
}

_firectl_keys() {
    firectl presets fire 2>/dev/null | sed -n 's/^\([a-z_]*\)=.*/\1=/p'
}

_firectl() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} words=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W \
            "reinit analyze compare presets selftest health status ping stat top drain --help \
            --version" -- "$current")
        return
    fi
    case $previous in
        --preset) words=$(_firectl_presets) ;;
        --set) words=$(_firectl_keys); compopt -o nospace ;;
        --arch) words="auto gpt2 llama vit resnet mamba plain none" ;;
        --only) words="all qk" ;;
        --path) words="auto portable avx2 avx512 amx" ;;
        --state-policy) words="keep zero reset transport" ;;
        --threads | --deadline | --target | --steps | --seed | --include | --exclude | --tie | \
            --fail-if | --addr | --token | --tenant | --server-name | --run | --step | -n | \
            --count | --interval | --limit) return ;;
        --priority) words="interactive normal bulk" ;;
        *)
            if [[ $current == -* ]]; then
                words=$(firectl "$command" --help 2>/dev/null |
                    grep -o -- '--[a-z][a-z-]*' | sort -u)
            elif [[ $command == presets ]]; then
                words=$(_firectl_presets)
            fi
            ;;
    esac
    if [[ -n $words ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -F _firectl firectl
