"""Configuration: strict YAML 1.2, every error at once, each with file, line, key and what was probably meant."""

from devherd.config.diff import changed_keys
from devherd.config.load import Loaded, load_bytes, load_plugin_config, load_settings, load_struct, plugin_config_path
from devherd.config.problems import ConfigError, Problem, format_problems
from devherd.config.site import Checked, check_plugins

__all__ = [
    "Checked",
    "ConfigError",
    "Loaded",
    "Problem",
    "changed_keys",
    "check_plugins",
    "format_problems",
    "load_bytes",
    "load_plugin_config",
    "load_settings",
    "load_struct",
    "plugin_config_path",
]
