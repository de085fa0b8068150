"""The stages of a run, in order: features, centers, statistics, solve, evaluate; one module each.

`fit.fit` tells the story. Its steps work in a `workspace.Workspace`, which commits what they find under a name, once:
the folder of a run (`run_state.Run`), or the memory of an estimator (`estimators.memory.Memory`). The solves of the
outputs are in `one_vs_all`; where the Gram of all candidates does not fit, `out_of_core` generates columns.
"""
