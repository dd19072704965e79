"""Plans: what a computation becomes before it runs, and how it becomes that.

A plan is a flat list of steps over numbered slots; a step says all that will happen there. `steps` has them as data,
`kernels` what a step computes. `planner` lowers a module's computations, callees first (`lowering…`), and sends each
through the passes that `pipeline` lists, each a function from plan to plan in a file of `passes`. `verifier` says what
holds between passes, and checks it. `regions` are the kernels that fusion makes.

Nothing here runs anything: `hloexec.exec` does, and decides when, never what.
"""
