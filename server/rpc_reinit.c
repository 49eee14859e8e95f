/* rpc_reinit */
typedef int fired_rpc_reinit_is_not_written_yet;
