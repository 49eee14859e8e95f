/* rpc_wire */
typedef int fired_rpc_wire_is_not_written_yet;
