"""The scripts of ``mqadmin completion SHELL``; each asks the program itself for candidates."""

from __future__ import annotations

from collections.abc import Mapping

BASH = r"""# bash completion of mqadmin; load it with: source <(mqadmin completion bash)
_mqadmin() {
    local line words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\t'*}")
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
}
complete -o default -F _mqadmin mqadmin
"""
ZSH = r"""#compdef mqadmin
# zsh completion of mqadmin; load it with: source <(mqadmin completion zsh)
_mqadmin() {
    local line
    local -a found
    for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    if (( ${#found} )); then
        _describe 'mqadmin' found
    else
        _files
    fi
}
if [[ ${funcstack[1]} == _mqadmin ]]; then
    _mqadmin "$@"
else
    compdef _mqadmin mqadmin
fi
"""
FISH = r"""# fish completion of mqadmin; load it with: mqadmin completion fish | source
function __mqadmin_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c mqadmin -f -a '(__mqadmin_complete)'
complete -c mqadmin -n 'not count (__mqadmin_complete) >/dev/null' -F
"""
SCRIPTS: Mapping[str, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}
