"""What may be submitted: sections, arms, presets, tasks, metrics, reward constants, rules, plan."""
