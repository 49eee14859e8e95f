/* tenant */
typedef int fired_tenant_is_not_written_yet;
