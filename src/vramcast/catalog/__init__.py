"""Facts as rows of data files, each with its source: cards, models, the defaults of frameworks."""
