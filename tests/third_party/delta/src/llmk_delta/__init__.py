"""One plugin of each kind for llmk, in five plugin modules: ``ibis_specs``, ``loon_specs``, ``plover_specs``,
``egret_specs`` and ``swift_specs``."""
