"""The stages of a run, in order: features, centers, statistics, solve, evaluate; one module each.

A stage is a pure function of one item, run over items by an executor (`run_state.Run.run_items`). The item is the unit
of work, of retry and of resume: it is done when its marker, or the whole file that it commits, is there, and never done
again. Inside the solves, `solve_checkpoints` resumes. The solves of the outputs are in `one_vs_all`; where the Gram of
all candidates does not fit, `out_of_core.working_set_rounds` generates columns.
"""
