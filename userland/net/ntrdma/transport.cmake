# SPDX-License-Identifier: MIT
# The ntrdma transport rests on the rings of the software RDMA device, and on both its back ends.
find_package(OpenSSL REQUIRED)
list(APPEND COOP_NET_LINK ntrdma_backend ntrdma_core coop_base OpenSSL::Crypto)
list(APPEND COOP_NET_PRIVATE -lcrypto)
