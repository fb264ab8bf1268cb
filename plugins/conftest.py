"""What is collected below: the plugins, and not the template, whose package is not installed here."""

collect_ignore = ["_template"]
