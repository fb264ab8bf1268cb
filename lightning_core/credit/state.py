"""State credit: a call is compared with what other rollouts came to from the same state.

    A(i, t) = G(i, t) - V(s)

    G     the rewards from t on, whoever earned them
    V(s)  mean G of the other rollouts in which the same agent was shown the same observation, and of one more
          that earned what the agent does at that turn

The baseline that depends on the state is as old as the policy gradient theorem (Sutton et al. 1999); taking
it from the other samples is RLOO's (Kool et al. 2019), here at every state and not only at the start. What
was decided before, and shows in the observation, no longer counts for the calls after it. The one more
steadies a mean over few: a state no other rollout was in is compared with the same turn of the agent.

Assumes that a reward about a call is owed to that call or to earlier ones: one that is given for what later
calls made of it is counted for the calls up to it alone, not for those that brought it about. If so it is
unbiased, also where observations hide something. `tabular` assumes more and is less noisy.
"""

from __future__ import annotations

from lightning_core.credit.tabular import Tabular

state = Tabular(own=1.0)
"""One comparison: all advantages of the group; its baselines are its own, not the algorithm's."""
