/* rpc_error */
typedef int fired_rpc_error_is_not_written_yet;
