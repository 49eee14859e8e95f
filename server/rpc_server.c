/* rpc_server */
typedef int fired_rpc_server_is_not_written_yet;
