# Completion of firectl for bash. Options come from `firectl COMMAND --help`, presets from `firectl
# presets`, so the list is never out of date.

_firectl_presets() {
    firectl presets --json 2>/dev/null | sed -n 's/^{"preset":"\([^"]*\)".*/\1/p'
}

_firectl_keys() {
    firectl presets fire 2>/dev/null | sed -n 's/^\([a-z_]*\)=.*/\1=/p'
}

_firectl_runs() {
    firectl runs --json --deadline 2 2>/dev/null | sed -n 's/^{"run": *"\([^"\\]*\)".*/\1/p'
}

_firectl() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} words=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W \
            "reinit analyze compare presets selftest health status ping stat top drain runs show \
            watch advise export report --help --version" -- "$current")
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
            --count | --interval | --limit | --filter | --layer | --from | --to | --width | \
            --name | --framework | --label) return ;;
        --statistic) words="dfi dormant_ratio gradient_dormant_ratio gradient_norm effective_rank \
            norm sfe loss" ;;
        --format) words="csv json safetensors" ;;
        --priority) words="interactive normal bulk" ;;
        *)
            if [[ $current == -* ]]; then
                words=$(firectl "$command" --help 2>/dev/null |
                    grep -o -- '--[a-z][a-z-]*' | sort -u)
            elif [[ $command == presets ]]; then
                words=$(_firectl_presets)
            elif [[ $command == show || $command == watch || $command == advise ||
                $command == export && $previous != -o ]]; then
                words=$(_firectl_runs)
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
