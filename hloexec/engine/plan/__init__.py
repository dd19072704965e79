"""Plans: the compiled form of a computation, and how it is built.

A plan is a flat list of steps over numbered slots; a step states everything that it will do. `steps` defines them as
data, `process` what a step computes. `planner` lowers a module's computations, callees first (`lowering…`), and runs
the passes that `pipeline` lists, each a function from plan to plan in a file of `passes`. `verifier` states and checks
the invariants between passes. `regions` has the kernels of fused steps.

Nothing here runs anything. `hloexec.engine.exec` does; it decides when steps run, never what they do.
"""
