/* rpc_admin */
typedef int fired_rpc_admin_is_not_written_yet;
