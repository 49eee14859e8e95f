/* rpc_health */
typedef int fired_rpc_health_is_not_written_yet;
