"""The commands; `tbactl.cli.main.COMMANDS` lists them."""
