// SPDX-License-Identifier: MIT
// net.hpp - includes the whole messaging library.
//
//   domain            an open transport
//   buffer            registered memory
//   transfer_machine  an address, six queues and their events
//   endpoint          a remote transfer machine
//   buffer_pool       receive buffers shared by several transfer machines
//   channel           waits for events together with other descriptors
//   messenger         send(to, bytes): a transfer machine with its buffers
//   rpc               call(to, method, bytes): methods with arguments and results
#pragma once

#include "net/address.hpp"
#include "net/base.hpp"
#include "net/buffer.hpp"
#include "net/buffer_pool.hpp"
#include "net/channel.hpp"
#include "net/domain.hpp"
#include "net/endpoint.hpp"
#include "net/messenger.hpp"
#include "net/rpc.hpp"
#include "net/transfer_machine.hpp"
