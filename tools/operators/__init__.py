"""Single operators on fake tensors (a head with its loss, a layer of experts), beside what their makers measured."""
