  insert into {log} (op, {keys})
  select 2, {keys} from changefeed_staged
   where owner = {owner} and live = 2 and {keys_not_null}
