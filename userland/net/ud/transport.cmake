# SPDX-License-Identifier: MIT
# The ud transport rests on the UD end points and on the protocol engines.
find_package(OpenSSL REQUIRED)
list(APPEND COOP_NET_LINK coop_fetch_host coop_ud coop_fetch coop_chan coop_base OpenSSL::Crypto)
list(APPEND COOP_NET_PRIVATE -libverbs -lisal -lcrypto)
