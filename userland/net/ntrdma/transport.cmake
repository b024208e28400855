# SPDX-License-Identifier: MIT
# The ntrdma transport rests on the rings of the software RDMA device, and on its shared memory.
list(APPEND COOP_NET_LINK ntrdma_backend ntrdma_core)
