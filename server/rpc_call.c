/* rpc_call */
typedef int fired_rpc_call_is_not_written_yet;
