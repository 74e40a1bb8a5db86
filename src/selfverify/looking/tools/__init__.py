"""Visual tools: the images they look at, what a tool is, the toolbox, the tools, the models behind them."""
