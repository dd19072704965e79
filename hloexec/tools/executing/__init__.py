"""Work on many modules: tasks in processes of their own, on whatever workers there are.

`processes` starts a process and bounds it, `tasks` is what a worker does with a task, `engines` opens what has the
workers (this machine, Dask, MPI, or any `concurrent.futures.Executor`), `running` hands tasks out, and `chunks` those
of items that share a process.
"""
