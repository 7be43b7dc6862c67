"""The tables of docs/serving.md, made from what `typebar serve` knows."""

from typebar.cli.settings import PANELS, Setting
from typebar.presets import PRESETS


def preset_table() -> str:
    rows = [
        f"| `{name}` | {preset.purpose} | {', '.join(map(_code, preset.flags()))} |" for name, preset in PRESETS.items()
    ]
    return "\n".join(["| Preset | For | Sets |", "|---|---|---|", *rows])


def settings_table(panel: str) -> str:
    rows = [_row(setting) for setting in PANELS[panel]]
    return "\n".join(["| Flag | Environment | Default | What it does |", "|---|---|---|---|", *rows])


def _row(setting: Setting) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (setting.flag, *setting.more_flags))
    variables = ", ".join(f"`{variable}`" for variable in setting.variables)
    default = f"`{setting.default}`" if setting.default else ""
    return f"| {flags} | {variables} | {default} | {setting.help} |"


def _code(flag: str) -> str:
    setting, *condition = flag.split(" or ")
    return f"`{setting}`" + "".join(f" or {words}" for words in condition)
