"""Worker processes that read tasks, such as spans of a run, in order; those that die or hang are replaced.

    pool           tasks in, results out in their order, whatever becomes of the workers
      -> worker_set    one set of workers, from its start to its end
           -> torch_loader  torch's ``DataLoader``: how it is made, and what it does not offer
           -> watch         a thread that looks on while the loader waits
    worker         what runs in a worker; messages, what it hands over; user_globals, what it has to find there

May import: datasets, encoders, plan.
"""
