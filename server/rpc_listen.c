/* rpc_listen */
typedef int fired_rpc_listen_is_not_written_yet;
