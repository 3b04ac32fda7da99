"""Plans that change on the way: by the stages of a schedule, which are known beforehand, and by changes of a run.

    tree with schedules --- staged ---> stages: trees without schedules, each from a position on
    changes of a run --- PlanEditor --> chapters, one a stage, over sequences: what each source yields, through all

    ChapteredPlan   position -> chapter -> source and its rank -> dataset, epoch, sample index
    epochs          what was fed, is left, was dropped or excluded of each epoch, as sums; every change is checked by it
    past_recipe     what was fed before a position, for saved states

May import: plan, errors.
"""
