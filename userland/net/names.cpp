// SPDX-License-Identifier: MIT
// names.cpp - the names of the contract's enumerators.
//
// They are spelled as in the documents of the field, so that logs of different implementations can
// be compared.
#include "coop/net/transfer_machine.hpp"

namespace coop::net
{

const char *name(queue_type q) noexcept
{
	switch (q) {
	case queue_type::msg_recv:
		return "MSG_RECV";
	case queue_type::msg_send:
		return "MSG_SEND";
	case queue_type::passive_bulk_recv:
		return "PASSIVE_BULK_RECV";
	case queue_type::passive_bulk_send:
		return "PASSIVE_BULK_SEND";
	case queue_type::active_bulk_recv:
		return "ACTIVE_BULK_RECV";
	case queue_type::active_bulk_send:
		return "ACTIVE_BULK_SEND";
	}
	return "?";
}

const char *name(tm_state s) noexcept
{
	switch (s) {
	case tm_state::undefined:
		return "UNDEFINED";
	case tm_state::initialized:
		return "INITIALIZED";
	case tm_state::starting:
		return "STARTING";
	case tm_state::started:
		return "STARTED";
	case tm_state::stopping:
		return "STOPPING";
	case tm_state::stopped:
		return "STOPPED";
	case tm_state::failed:
		return "FAILED";
	}
	return "?";
}

} // namespace coop::net
