/* rpc_reflection */
typedef int fired_rpc_reflection_is_not_written_yet;
