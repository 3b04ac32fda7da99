"""The peers' own tests, run against Headrace: `make suites`.

    HEADRACE_SUITES=/folder make suites     # the folder holds checkouts: energon, megatron, astrai, torchtune, trl

A module of this package is one suite: `SUITE` says where its tests are, and as a pytest plugin the module puts Headrace
in place of the peer. Nothing of a peer is kept here except the identifiers of the tests that pass, in `passing`.

    suite.py        what a suite is, and the pytest plugin that records the results and ends tests that hang
    run.py          runs the suites at hand, prints counts for each module, and compares with `passing`
    energon.py ...  one suite each

A suite has variants. ``itself`` is the peer without any shim, ``names`` maps names and does nothing else, and
``documented`` also makes the changes that the pages in docs/migrate describe. A suite may have others, see its module.
"""
